"""The sanitizer: does a program do what its declarations say?"""
