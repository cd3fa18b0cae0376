"""Options, defined once: one frozen type per group, read by every interface.

The click options of a verb, the keys of a budget file, the controls of the workbench and the
generated reference all come from the fields of these types.
"""
