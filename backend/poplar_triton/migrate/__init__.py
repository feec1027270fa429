"""`poplar-triton migrate`: reads a model repository of a Graphcore SDK, finds the graph of each of
its models, and writes a repository that serves without an IPU."""
