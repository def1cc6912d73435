"""Chakra `.et`: the face of the codec."""
from etude.store.et_decode import Decoded, decode, decode_heap
from etude.store.et_encode import encode, encode_parts
__all__ = ["Decoded", "decode", "decode_heap", "encode", "encode_parts"]
