"""Language models on HTP: sizes by rule or from compiled layers, shards, process domains.

config    the decoder's sizes: config.json, a GGUF header, or models.toml
recipe    bits of each part: recipes.toml, changed part by part
rule      bytes of weights, inputs, outputs and files, by arithmetic
plan      shards against the limits of a SoC, and the longest context
layer     a decoder of a few layers as an ONNX model
compiled  measured sizes of one and two layers from the real library
"""
