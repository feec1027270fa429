"""Models of one operator each beside exact arithmetic: integers in all types, quantized tensors,
empty tensors, windows and ranges in every opset.

`forms` has the model and its judge, the other modules draw the cases, `running` counts outcomes.
"""
