"""Where keys, values and recurrent states are kept, and how much memory they take."""
