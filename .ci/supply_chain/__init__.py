"""What the environment is made of: which files may be installed, under which licences, and what was installed.

lockfile: reads and writes requirements-cpu.lock
resolve: finds versions and hashes anew, for `make lock`
installed: what is installed, and where it differs from the lock
licences: under which licence each package is, and which ones are allowed (`licences.yaml`)
sbom: the bill of materials, as CycloneDX
vulnerabilities: asks a service what is known of the versions
audit: all of it, for `make audit`
"""
