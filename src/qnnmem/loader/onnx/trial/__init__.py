"""Where foreign code runs on a model: in a child process with limits on time and memory.

questions    what the passes ask: types by inference, types by running, values of constants
child        our end of the pipe
program      the child program at the other end
"""
