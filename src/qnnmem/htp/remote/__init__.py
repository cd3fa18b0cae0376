"""A worker of the HTP library on another machine, reached through the pipe of a command.

    messages     the protocol of both ends: greeting, messages, limits
    files        requests without paths, and the worker's files, identified by content
    client       the client's end: the process of a command, requests and their answers
    server       the worker's end: the loop of `qnnmem htp-worker`
    cluster      models on the workers of a cluster, which use no pipe

Both ends share only the pipe. The client's end is used only by `qnnmem.htp.worker`.
"""
