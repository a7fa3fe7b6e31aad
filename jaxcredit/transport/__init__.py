"""Transport: carry value straight from where a memory is read to the step that is remembered."""
