"""Our models inside the libraries that people use DeBERTa with. Everything is compared with the stock model of the
same random weights. Packages that are not installed are skipped: pip install 'debertakit[clients]'."""
