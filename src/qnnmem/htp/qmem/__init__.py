"""Raw and memhandle inputs and outputs, with shared memory emulated by qnnmem."""
