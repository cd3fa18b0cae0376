"""A worker of the HTP library on another machine, reached through a pipe that a command opens.

    command      which commands start workers
    wire         what both ends agree on: greeting, frames, limits
    connection   this end: the process of the command, its hello, its end
    parcel       this end: which files go with a request
    server       the far end: what `qnnmem htp-worker` does
    request      the far end: a request that is not trusted, in a folder of its own
    store        the far end: files that were sent, found again by content
    cluster      the same files on workers of a cluster, which have no pipe

Nothing is shared but the pipe. Who asks through it is `qnnmem.htp.worker`.
"""
