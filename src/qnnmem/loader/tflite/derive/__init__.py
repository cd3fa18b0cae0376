"""Shapes of a TFLite model for inputs of other sizes than the file was made with."""
