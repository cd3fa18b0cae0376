"""A worker of the HTP library on another machine, reached through the pipe of a command.

    messages     the protocol of both ends: greeting, messages, limits
    files        requests without paths, and the worker's files, identified by content
    client       the client's end: the process of a command, requests and their answers
    server       the worker's end: what `qnnmem htp-worker` runs
    cluster      the same files on workers of a cluster, which have no pipe

The pipe is all that both ends share. Its only user is `qnnmem.htp.worker`.
"""
