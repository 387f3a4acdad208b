"""A request that comes in: shed or not, sized up, put in a lane, given a plan, admitted or refused."""
