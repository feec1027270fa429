"""Files of TensorFlow for the IPU, and what runs them: executables, variables and feeds in PopEF,
application compile and the embedded runtime."""
