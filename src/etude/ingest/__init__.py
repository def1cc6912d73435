"""From what was recorded to Chakra traces."""
