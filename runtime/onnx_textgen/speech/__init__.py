"""Speech: from sound files to windows of sound, to the features that an encoder reads."""
