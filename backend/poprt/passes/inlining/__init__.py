"""Passes that put what an operator stands for in its place: functions of a model, operators of
users."""
