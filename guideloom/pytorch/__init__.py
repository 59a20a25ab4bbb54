"""Tensors: the loader for PyTorch, and what makes tensors of documents."""

from guideloom.pytorch.jagged import Nested, Padded, nested_tensor, padded_tensor
from guideloom.pytorch.loader import StatefulDataLoader
from guideloom.pytorch.spans import TensorSpans

__all__ = ["Nested", "Padded", "StatefulDataLoader", "TensorSpans", "nested_tensor", "padded_tensor"]
