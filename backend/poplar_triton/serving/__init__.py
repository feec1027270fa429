"""Serving: a real tritonserver, started, asked, watched and stopped."""
