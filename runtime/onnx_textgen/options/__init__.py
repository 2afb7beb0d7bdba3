"""What a request wants: its options, their checks, what they imply."""
