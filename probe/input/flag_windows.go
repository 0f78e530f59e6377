package input

// These are for files of a node, which is no Windows.
const noFollow, directory = 0, 0
