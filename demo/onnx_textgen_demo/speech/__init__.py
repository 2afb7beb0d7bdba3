"""What the tab Transcribe shows: a sound from the browser, and what is said in it."""
