"""Every method of popart's Builder on special values, types, sizes and forms, beside witnesses."""
