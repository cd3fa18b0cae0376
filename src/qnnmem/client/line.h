/* Bytes on a socket, whole or not at all; what travels has the byte order of the machine. */
#include <errno.h>
#include <stdint.h>
#include <sys/socket.h>

typedef struct { uint32_t length; uint16_t kind, function; } head;    /* from here, then words */
typedef struct { uint32_t length, action; uint64_t a, b, c; } reply;  /* from there, then text */

static int send_all(int fd, const void *data, size_t size) {
    const char *at = (const char *)data;
    while (size > 0) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return 0;
        at += sent;
        size -= (size_t)sent;
    }
    return 1;
}

static int receive_all(int fd, void *data, size_t size) {
    char *at = (char *)data;
    while (size > 0) {
        ssize_t got = recv(fd, at, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        at += got;
        size -= (size_t)got;
    }
    return 1;
}
