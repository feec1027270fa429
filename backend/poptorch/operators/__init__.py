"""What a forward function calls beside torch: placement, marks, custom operators.

`poptorch.ops` has the operators themselves.
"""
