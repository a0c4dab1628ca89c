"""Audio: decoding, resampling, log-mel, and the form of audio that a model reads."""
