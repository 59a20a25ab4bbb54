"""Encodings of documents and payloads: those built in, and how to add one's own."""

from guideloom.formats.arrays import NumpyArray, NumpyArrays, Rows
from guideloom.formats.encoding import Encoding, NumericEncoding, register
from guideloom.formats.general import JSON, Bytes, Text

__all__ = ["JSON", "Bytes", "Encoding", "NumericEncoding", "NumpyArray", "NumpyArrays", "Rows", "Text", "register"]
