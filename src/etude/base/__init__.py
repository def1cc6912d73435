"""What everybody may import: errors, units, files, figures, faces, remote files."""
