"""Studies of the field's claims, one module each: a sweep, the numbers measured on it, the verdict by a written rule."""
