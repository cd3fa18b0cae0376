"""The compiled half of the planner; importing a module of this folder imports numba.

Two things keep calls cheap in the innermost loop, where an array is seven words and its references
are counted on the way in and out: functions with one caller are inlined (`forceinline`), and the
search works on arrays whose references are not counted (`borrow_core`).
"""
