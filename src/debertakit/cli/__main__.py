from debertakit.cli import main

main()
