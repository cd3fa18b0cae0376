"""A worker of the HTP library on another machine, reached through a pipe that a command opens.

    command      which commands start workers
    messages     what both ends agree on: greeting, messages, limits
    connection   the client's end: the process of the command, its hello, its end
    parcel       a request without paths: packed by the client, unpacked by the worker
    server       the worker's end: what `qnnmem htp-worker` does
    store        the worker's files, found again by content
    cluster      the same files on workers of a cluster, which have no pipe

Nothing is shared but the pipe. Who asks through it is `qnnmem.htp.worker`.
"""
