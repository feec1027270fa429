"""A speech model that carries its state from call to call: when does somebody speak?

    python examples/speech_detection.py silero_vad_openvino_16k.onnx [sound.wav]

The model is Silero's (MIT): `pip download --no-deps silero-vad==6.2.3`, then unpack
`silero_vad/data/silero_vad_openvino_16k.onnx` from the wheel. The sound has one channel of 16-bit
samples at 16 kHz; without a file four vowels are synthesised between silence and noise.
"""

from __future__ import annotations

import sys
import wave

import numpy as np
import onnx
from model_runtime import ModelRunner
from poprt import Compiler, Converter

RATE, WINDOW, CONTEXT = 16_000, 512, 64
FORMANTS = {
    "a": ((730, 90), (1090, 110), (2440, 170)),
    "i": ((270, 60), (2290, 100), (3010, 150)),
    "u": ((300, 60), (870, 90), (2240, 150)),
}
"""Frequency and bandwidth in Hz of the resonances of vowels (Peterson and Barney, 1952)."""


def main() -> None:
    """Print the probability of speech for each tenth of a second."""
    model, *files = sys.argv[1:]
    executable = Compiler.compile(Converter(precision="fp32").convert(onnx.load(model)))
    executable.export("speech.popef")
    sound = read(files[0]) if files else synthesise()
    state = np.zeros((2, 1, 128), np.float32)
    context = np.zeros((1, CONTEXT), np.float32)
    with ModelRunner("speech.popef") as runner:
        for start in range(0, len(sound) - WINDOW + 1, WINDOW):
            samples = np.concatenate([context, sound[None, start : start + WINDOW]], 1)
            outputs = runner.execute({"input": samples, "state": state})
            state, context = outputs["stateN"], samples[:, -CONTEXT:]
            if start // WINDOW % 3 == 0:
                speech = float(outputs["output"].item())
                print(f"{start / RATE:5.2f} s  {speech:4.2f}  {'#' * round(40 * speech)}")


def read(file: str) -> np.ndarray:
    """Return the samples of a file, from -1 to 1."""
    with wave.open(file) as sound:
        if (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) != (1, 2, RATE):
            raise SystemExit(f"{file}: expected one channel of 16 bits at 16 kHz")
        samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
    return samples.astype(np.float32) / 32768


def synthesise() -> np.ndarray:
    """Return a second of silence, four vowels of a quarter of a second, and a second of noise."""
    voices = (("a", 120), ("i", 130), ("u", 115), ("a", 125))
    vowels = [make_vowel(pitch, name) for name, pitch in voices]
    noise = 0.01 * np.random.default_rng(0).standard_normal(RATE)
    return np.concatenate([np.zeros(RATE), *vowels, noise]).astype(np.float32)


def make_vowel(pitch: float, name: str, count: int = RATE // 4) -> np.ndarray:
    """Return a sum of harmonics of a trembling voice, louder near the vowel's resonances."""
    times = np.arange(count) / RATE
    phase = np.cumsum(pitch * (1 + 0.03 * np.sin(10 * np.pi * times))) / RATE
    samples = np.zeros(count)
    for harmonic in range(1, int(4700 / pitch)):
        loudness = sum(1 / (1 + ((pitch * harmonic - f) / b) ** 2) for f, b in FORMANTS[name])
        samples += loudness / np.sqrt(harmonic) * np.sin(2 * np.pi * harmonic * phase)
    return 0.5 * samples / np.abs(samples).max() * np.hanning(count) ** 0.3


if __name__ == "__main__":
    main()
