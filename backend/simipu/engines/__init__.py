"""What computes the graph of a program: ONNX Runtime's CPU kernels, an accelerator, a child process
or the onnx reference. `opening` says which one; `program_graphs` lowers the graph before.

Other rooms import the public names from `simipu`.
"""
