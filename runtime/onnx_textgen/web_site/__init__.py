"""Static web sites that run a model folder in a visitor's browser: the folder is built here, the JavaScript is in `runtime/web`."""
