"""A worker of the HTP library on another machine, reached through a pipe that a command opens.

    messages     what both ends agree on: greeting, messages, limits
    files        a request without paths, and the worker's files, found again by content
    client       the client's end: the process of a command, requests and their answers
    server       the worker's end: what `qnnmem htp-worker` does
    cluster      the same files on workers of a cluster, which have no pipe

Nothing is shared but the pipe. Who asks through it is `qnnmem.htp.worker`.
"""
