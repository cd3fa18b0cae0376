"""What each verb does: options in, result out, for the command line and for the workbench.

A door reads arguments or a request, calls a function here, and shows what it returns.
"""
