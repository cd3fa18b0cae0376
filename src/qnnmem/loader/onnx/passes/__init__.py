"""The passes of loading an ONNX file, one module each, in the order of `qnnmem.loader.onnx`."""
