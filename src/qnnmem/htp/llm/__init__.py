"""Language models on HTP: sizes by rule or from compiled layers, shards, process domains.

config          the decoder's sizes and the bits of each part: config.json, GGUF, tables
rule            bytes of weights, inputs, outputs and files, by arithmetic
rule_check      measured sizes of one and two layers from the real library
plan            shards against the limits of a SoC, and the longest context
decoder_layers  a decoder of a few layers as an ONNX model
compare         files of a deployed model against the expected shards
"""
