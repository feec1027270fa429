"""Server of TensorFlow Serving's protocols, gRPC and REST, in front of PopEF models or of a Triton
that has them."""
