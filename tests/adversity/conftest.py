from tests.leaks import no_leaks as no_leaks
