"""Put the embedded models, the recipes and the table of short names into a frozen app."""

from PyInstaller.utils.hooks import collect_data_files

datas = collect_data_files("onnx_textgen")
