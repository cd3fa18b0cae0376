"""Raw and memhandle inputs and outputs, with shared memory of our own."""
