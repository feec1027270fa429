"""Sessions: a model is checked, compiled for a device, run in steps, and exported."""

from popart.session.inference_session import InferenceSession as InferenceSession
