"""Image processors as graphs: what transformers' do with a picture, and what it becomes in a text."""
