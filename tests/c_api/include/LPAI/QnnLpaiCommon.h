/* Where the SDK has this header; see qnn_declarations.h. */
#include "../qnn_declarations.h"
