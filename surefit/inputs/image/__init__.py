"""Images: decoding, and the pixel format a model expects."""
