"""Chakra `.et`: the face of the codec."""
from etude.store.et_decode import Decoded, decode, decode_files
from etude.store.et_encode import encode, encode_parts
__all__ = ["Decoded", "decode", "decode_files", "encode", "encode_parts"]
