"""Triton model folders of compiled models: configuration, versions and locks."""
